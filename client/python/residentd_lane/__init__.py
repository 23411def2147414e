"""The binary parts of residentd's local lanes, which the package `residentd` finds here: libresidentd_lane.so, and
the module `_lane`, which calls it with less overhead than ctypes."""
