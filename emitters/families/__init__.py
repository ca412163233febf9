"""An emitter for each kernel family: from a config to the page that instantiates its kernel."""
