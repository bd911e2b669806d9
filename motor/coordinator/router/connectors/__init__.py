"""KV connectors: what each wants on the prefill and on the decode leg. One small table a connector."""
