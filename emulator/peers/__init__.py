"""The peers' own device tests on the emulated NPU: MindSpeed's and vllm-ascend's, from source trees at the pins.

`python -m emulator.peers --root DIR`. `peers.yaml`, one folder up, says what is run and why something does not pass.
"""
