"""Where candidates come from: the shapes the field describes them in, and the names surfaces show them by."""
