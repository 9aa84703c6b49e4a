"""Machines: a tree of levels from the whole system down to the device, regions of it, and a catalogue with sources."""
