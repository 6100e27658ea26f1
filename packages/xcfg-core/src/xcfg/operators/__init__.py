"""Semantic operators: the catalogue of declared backends, and the session that binds one case to exact backends."""

from __future__ import annotations

from xcfg.operators.catalog import CatalogEntry, SemanticOperatorCatalog
from xcfg.operators.checks import ResolutionContext
from xcfg.operators.digest import package_source_digest
from xcfg.operators.session import OperatorResolutionError, OperatorSession

__all__ = [
    "CatalogEntry",
    "OperatorResolutionError",
    "OperatorSession",
    "ResolutionContext",
    "SemanticOperatorCatalog",
    "package_source_digest",
]
