"""What `sidetier consume` is made of: places, two sources, forms of output, and the loop."""
