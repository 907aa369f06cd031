"""Any score inside the models of Hugging Face transformers.

```python
from regard.integrations.transformers import load_pretrained, use_score

use_score(model, "additive")          # every attention layer gets its own learned score
model.save_pretrained("folder")       # scores and all
model = load_pretrained("folder")
```

Importing this module registers the attention implementation "regard" together with its mask
function.
"""

try:
    import transformers as _transformers  # noqa: F401 - only whether it is there
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ImportError(
        "regard.integrations.transformers needs transformers 5 or later: pip install regard[hf]"
    ) from None

from regard.integrations.transformers.attach import restore, use_score
from regard.integrations.transformers.forward import IMPLEMENTATION
from regard.integrations.transformers.layers import Layer, attention_layers
from regard.integrations.transformers.loading import load_pretrained

__all__ = [
    "IMPLEMENTATION",
    "Layer",
    "attention_layers",
    "load_pretrained",
    "restore",
    "use_score",
]
