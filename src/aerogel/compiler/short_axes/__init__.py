"""Arrays with a short last axis, worked on entry by entry or in long rows."""
