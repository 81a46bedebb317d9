"""The demo: softmax, EDL and DAEDL on two moons and on handwritten digits, with an HTML report."""
