"""Four models as five libraries write them, each with a step of training: loss, gradient, Adam's update."""
