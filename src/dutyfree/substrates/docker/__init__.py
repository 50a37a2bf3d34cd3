"""`docker`: containers of a Docker-compatible engine, with our guest in each of them; also under gVisor."""

from dutyfree.substrates.docker.substrate import DockerSubstrate, GVisorDockerSubstrate

__all__ = ["DockerSubstrate", "GVisorDockerSubstrate"]
