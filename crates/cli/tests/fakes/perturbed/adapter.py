"""As if some weights had been loaded wrongly: all that it computes is a little off."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import fake

OFF = 1.002


def perturb(answer, request):
    if request["purpose"] == "check":
        answer["losses"] = [loss * OFF for loss in answer["losses"]]
        if request["outputs"]:
            fake.shift_outputs(request["outputs"], OFF)
    return answer


fake.main("perturbed", after=perturb)
