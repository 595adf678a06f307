from llmkube.supervisor.host.process_trees import footprints


def test_a_process_that_is_gone_has_no_footprint():
    """Neither the answer nor an error knows of it; one that holds nothing any more is about to be gone."""
    sizes = {7: 5, 8: 0}
    assert footprints([7, 8, 2**22 + 1], sizes.get) == {7: 5}
