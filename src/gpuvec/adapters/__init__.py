"""Adapters to the interfaces of other libraries; a module is named after its library, which must be installed to import it."""
