"""Pictures of environments: marks on a canvas, and their pixels."""
