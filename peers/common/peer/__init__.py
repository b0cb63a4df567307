"""What the adapters of peers share: the protocol, the work, the timed loop, and PyTorch's models, which are exported to ONNX too.

Written for Python 3.8 and NumPy 1.17 onwards, because some frameworks have packages for nothing newer.
"""
