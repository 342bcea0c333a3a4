"""The Light Routing Agent: an MCP server with two tools, `route` and `execute`, in front of everything else."""
