"""What every part needs: errors, checked reading of foreign values, units, intervals, notes, files, constants."""
