"""Local process supervision for `motor up`: the Render sidecar, engines and the Coordinator as child processes."""
