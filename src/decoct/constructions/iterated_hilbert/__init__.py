"""The default construction: Hilbert coresets at draws of their own posterior."""
