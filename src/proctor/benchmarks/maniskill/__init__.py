"""ManiSkill3: table-top tasks and SimplerEnv's WidowX tasks."""
