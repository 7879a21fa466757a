"""What runs in a sandbox, each in a process of its own, and the sandbox.

`reading` compares a notebook's cells, `judging` judges one kernel, `executing` runs a notebook;
`sandbox` starts them, and `supervise` is the script that watches over one of them.
"""
