from __future__ import annotations

import pytest
from fakes.objectives import random_documents, store_of

from lmtransfer.data.token_shards import TokenStore


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return a store of sixty random documents."""
    return store_of(tmp_path_factory.mktemp("stores") / "s", random_documents(60))
