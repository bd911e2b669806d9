"""Token ids, in the two alphabets that must never be mixed.

Semantic ids are what the tokenizer means; physical ids are what an engine with obfuscated weights expects.
Without obfuscation the numbers are equal, the types stay different: only `router.token_only` converts.
"""

from typing import NewType

SemanticTokenIds = NewType("SemanticTokenIds", tuple[int, ...])
PhysicalTokenIds = NewType("PhysicalTokenIds", tuple[int, ...])
