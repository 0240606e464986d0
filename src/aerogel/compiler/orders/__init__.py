"""In which sequence the dimensions of values are stored, so that least is copied."""
