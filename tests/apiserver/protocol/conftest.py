"""A catalog with a kind of a CRD in it."""

import pytest

from contracts.widgets import widget_crd
from llmkube.apiserver.kinds.catalog import Catalog


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.add_crd(widget_crd())
    return catalog
