"""Import a published model as a run directory, and open the run or published model that the user named."""
