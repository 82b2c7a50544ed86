"""Scripts that print speeds as ratios measured in one run; nothing imports them."""
