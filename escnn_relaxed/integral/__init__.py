"""The integral: the kernel K applied to a feature map."""
