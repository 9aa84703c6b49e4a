"""The evaluation: fixed scenarios on one machine, against other systems, step by step, printed with all assumptions."""
