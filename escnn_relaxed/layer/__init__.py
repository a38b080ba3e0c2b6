"""Arguments, state, and GeometricTensors in and out."""
