"""The planner's commands: plan, predict, calibrate and accuracy."""
