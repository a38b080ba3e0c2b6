"""K applied to a feature map."""
