"""LIBERO-Long: ten long manipulation tasks of a robot arm, simulated in MuJoCo.

Importing this is light; the simulator is loaded at the first reset of an environment.
"""
