"""Conversion of models from other frameworks, and of coresets back to them.

Each framework has one module, which imports the framework when it is called. `base` has what they
share.
"""
