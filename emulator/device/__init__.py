"""The device in C++ and its build."""
