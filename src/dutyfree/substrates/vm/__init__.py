"""The VM substrate: complete virtual machines with firmware, a disk, systemd and SSH, local or in a cloud."""

from dutyfree.substrates.vm.substrate import VMSubstrate

__all__ = ["VMSubstrate"]
