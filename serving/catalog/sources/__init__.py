"""Where a catalogue's candidates are read from: MCP servers, A2A agents, folders of skills, and files.

`base` is the protocol; each other module is one kind of source, and `locate` finds the kind of a path or URL.
"""
