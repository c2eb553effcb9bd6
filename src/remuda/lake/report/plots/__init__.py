"""The plots: pure functions from the report's data to inline SVG.

Every colour is a class or a variable of the page's style sheet, so that light, dark and paper need no other
picture; what a colour tells, a label, a dash or a hatching tells too.
"""
