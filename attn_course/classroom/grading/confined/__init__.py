"""What runs in a sandbox, each in a process of its own, and the sandbox.

`reading` compares a notebook's cells, `judging` judges one kernel; `sandbox` starts them, and
`supervise` watches over one of them from inside its walls.
"""
