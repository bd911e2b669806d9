"""The seam between semantic and physical token ids (RFC: Token 混淆适配)."""

from typing import Protocol

from motor.coordinator.domain.tokens import PhysicalTokenIds, SemanticTokenIds


class Obfuscator(Protocol):
    """A bijection over the vocabulary."""

    @property
    def is_identity(self) -> bool:
        """Whether physical ids equal semantic ids, so that native fallbacks are harmless."""

    def obfuscate(self, ids: SemanticTokenIds) -> PhysicalTokenIds:
        """Return the ids that the engine must see."""

    def deobfuscate(self, ids: PhysicalTokenIds) -> SemanticTokenIds:
        """Return what the engine's ids mean."""


class IdentityObfuscator:
    """No obfuscation: the engine speaks the tokenizer's ids."""

    is_identity = True

    def obfuscate(self, ids: SemanticTokenIds) -> PhysicalTokenIds:
        """Return the same ids, as physical ones."""
        return PhysicalTokenIds(ids)

    def deobfuscate(self, ids: PhysicalTokenIds) -> SemanticTokenIds:
        """Return the same ids, as semantic ones."""
        return SemanticTokenIds(ids)
