"""The consistency test: one request to native vLLM and to the Coordinator, compared field by field.

`comparison` and everything below it is pure; `sender` and `suite` do the I/O.
"""
