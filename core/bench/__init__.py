"""Offline throughput of an engine: request mixes, measuring, and planning on a simulated device."""
