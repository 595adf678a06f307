"""Engines' figures, as llama.cpp, vLLM, SGLang and TGI print them."""

import pytest

from llmkube.cli.commands.services.engine_metrics import Pace, pace_of, read_work

LLAMA = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total {prompt}
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {generated}
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""
VLLM = """# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{model_name="a"}} {generated}
vllm:generation_tokens_total{{model_name="b"}} 100.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{model_name="a"}} {prompt}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="a"}} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="a"}} 1.0
"""
TGI = """# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{{le="+Inf"}} 3
tgi_request_generated_tokens_sum {generated}
tgi_request_generated_tokens_count 3
# TYPE tgi_request_input_length histogram
tgi_request_input_length_sum {prompt}
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 2
# TYPE tgi_queue_size gauge
tgi_queue_size 1
"""
SGLANG = VLLM.replace("vllm:", "sglang:").replace("num_requests_running", "num_running_reqs")
SGLANG = SGLANG.replace("num_requests_waiting", "num_queue_reqs")


@pytest.mark.parametrize("text", [LLAMA, VLLM, TGI, SGLANG], ids=["llama.cpp", "vllm", "tgi", "sglang"])
def test_rates_are_what_grew_between_two_looks(text):
    """Ten tokens in two seconds are five per second, whatever the engine calls them."""
    before = read_work(text.format(generated=10, prompt=100), 1.0)
    now = read_work(text.format(generated=20, prompt=104), 3.0)
    assert pace_of(before, now) == Pace(generated=5.0, prompt=2.0, running=2, waiting=1)


def test_a_first_look_and_a_restart_have_no_rate():
    """Without an earlier look there is no rate, and a counter that went back belongs to another engine."""
    first = read_work(LLAMA.format(generated=10, prompt=1), 1.0)
    assert pace_of(None, first) == Pace(running=2, waiting=1)
    again = read_work(LLAMA.format(generated=3, prompt=1), 2.0)
    assert pace_of(first, again) == Pace(generated=None, prompt=0.0, running=2, waiting=1)


def test_what_says_nothing_is_not_zero():
    """An engine without these metrics has no figures, and no zeros either; what is no exposition is refused."""
    assert pace_of(None, read_work("other 1\n", 1.0)) == Pace()
    with pytest.raises(ValueError, match=r".+"):
        read_work("<html>no metrics</html>\n", 1.0)
