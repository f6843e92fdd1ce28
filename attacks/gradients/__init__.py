"""What gradients, updates and models tell: gradient matching, labels and heads in closed form."""
