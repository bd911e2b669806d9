"""A token engine and a Render sidecar that speak vLLM's HTTP with scriptable answers, timing and faults."""

from motor.simulator.clock import Clock, RealClock
from motor.simulator.engine import EngineSimulator
from motor.simulator.engine_settings import EngineSettings
from motor.simulator.faults import Fault, FaultKind, FaultSet, Leg
from motor.simulator.model_folder import ModelFolder
from motor.simulator.render import RenderSimulator, RenderStatistics
from motor.simulator.render_settings import RenderSettings
from motor.simulator.scripts import ArithmeticScript, ScriptedAnswers, TokenScript

__all__ = [
    "ArithmeticScript",
    "Clock",
    "EngineSettings",
    "EngineSimulator",
    "Fault",
    "FaultKind",
    "FaultSet",
    "Leg",
    "ModelFolder",
    "RealClock",
    "RenderSettings",
    "RenderSimulator",
    "RenderStatistics",
    "ScriptedAnswers",
    "TokenScript",
]
