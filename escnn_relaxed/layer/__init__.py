"""The layers: their arguments, their state, and GeometricTensors in and out."""
