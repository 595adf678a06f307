"""Plan an engine of the host's owner: the program and the arguments of `[engines.NAME]` in `config.toml`.

Such an engine checks no keys, so it listens on the loopback address, and the agent's proxy checks them; a local user
who finds the port has access.
"""

from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import GENERIC
from llmkube.runtimes.allowances import FIELD, Allowances, EngineTemplate
from llmkube.runtimes.plan import EngineInfo, EngineNotConfiguredError, LaunchPlan, Placeholder, PlanError
from llmkube.runtimes.process.environment import plan_environment
from llmkube.runtimes.process.host_runtime import HostRuntime, Program
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs

NAME: Final = GENERIC

_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.aliases", f"{FIELD}.name", f"{FIELD}.options"}
_REMEDY: Final = "add it to config.toml as [engines.NAME], and restart LLMKube"


def check(isvc: InferenceService, model: Model, allowances: Allowances) -> None:
    """Reject what the named engine cannot serve.

    Raises:
        EngineNotConfiguredError: This host has no engine of that name.
        PlanError: The invalid field, with a fix.
    """
    spec = isvc.spec
    if spec.extra_args:
        message = "the arguments of an engine are its owner's; remove these, or select values in spec.engine.options"
        raise PlanError(message, field="spec.extraArgs")
    if spec.speculative_decoding is not None:
        raise PlanError("runtime generic supports no draft model; remove it", field="spec.speculativeDecoding")
    plan_environment(spec.env, allowances)
    name, template = _template_of(isvc, allowances)
    template.argv_for(name, spec.engine.options if spec.engine else {}, 0)
    if (given := model.spec.format) not in template.formats:
        readable = " or ".join(template.formats)
        problem = f'engine "{name}" reads {readable}, not {given}; use weights in that format'
        raise PlanError(f"{problem}, or list {given} in its formats in config.toml", field="Model.spec.format")


def _template_of(isvc: InferenceService, allowances: Allowances) -> tuple[str, EngineTemplate]:
    """Return the name and the settings of the engine that a service names; raises as `check`."""
    engine = isvc.spec.engine
    if engine is None:
        message = "on a host, runtime generic runs an engine of its owner's config.toml, and no image"
        raise PlanError(f"{message}; set spec.engine.name to that engine's name", field=FIELD)
    template = allowances.engines.get(engine.name)
    if template is None:
        message = f'engine "{engine.name}" is not configured on this host'
        fix = f"add [engines.{engine.name}] to config.toml, and restart LLMKube"
        raise EngineNotConfiguredError(f"{message}; {fix}", field=f"{FIELD}.name")
    return engine.name, template


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service.

    Raises:
        PlanError: As `check`.
    """
    name, template = _template_of(inputs.isvc, inputs.allowances)
    engine = inputs.spec.engine
    planned = inputs.launch_plan(
        (Placeholder.PROGRAM, *template.argv_for(name, engine.options if engine else {}, inputs.context)),
        runtime=NAME,
        env=(*plan_environment(inputs.spec.env, inputs.allowances), *template.env.items()),
        demand=None,
        honoured=_HONOURED | ({"spec.contextSize"} if "ctx" in template.placeholders else set()),
    )
    return attrs.evolve(
        planned,
        engine=name,
        program=template.program,
        ready_path=template.health,
        ready_pattern=template.ready_pattern,
        memory_bytes=template.memory_bytes,
    )


RUNTIME: Final = HostRuntime(
    name=NAME,
    program=Program(
        command="",
        setting="",
        remedy=_REMEDY,
        describe=lambda program, _: EngineInfo(program, "", frozenset()),
        queries=(),
    ),
    check=check,
    plan=plan,
    keys_checked_by="the agent's proxy",
)
