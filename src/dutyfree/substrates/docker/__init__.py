"""The Docker substrates: containers of a Docker-compatible engine, each with our guest; also with gVisor as runtime."""

from dutyfree.substrates.docker.substrate import DockerSubstrate, GVisorDockerSubstrate

__all__ = ["DockerSubstrate", "GVisorDockerSubstrate"]
