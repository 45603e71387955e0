"""Models of other frameworks as decoct's, and coresets back as theirs.

One module a framework, loaded when it is used; nothing below imports them, and none of them imports
its framework before it is called. `base` is what they share.
"""
