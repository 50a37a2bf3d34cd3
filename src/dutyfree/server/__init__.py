"""The server's HTTP faces, over any `Host`: what a gateway serves. Needs `pip install dutyfree[server]`."""
