"""The smallest benchmark models as programs in the language of PRISM, for Storm to build; rewards are named as measures."""

PRISM = {
    "coxian_tandem": """
module first
  n : [0..3]; phase : [1..2];
  [] n < 3 -> 12 : (n' = n + 1);
  [] n > 0 & phase = 1 -> 0.2 : (phase' = 2);
  [pass] n > 0 & phase = 1 -> 1.8 : (n' = n - 1);
  [pass] n > 0 & phase = 2 -> 2 : (n' = n - 1) & (phase' = 1);
endmodule
module second
  m : [0..3];
  [pass] m < 3 -> 1 : (m' = m + 1);
  [] m > 0 -> 4 : (m' = m - 1);
endmodule
rewards "customers" true : n + m; endrewards
rewards "throughput" m > 0 : 4; endrewards
rewards "loss_probability" n = 3 : 1; endrewards
rewards "blocking_probability" n > 0 & m = 3 : 1; endrewards
""",
    "polling": """
module server
  at : [0..2]; busy : bool init false;
  [pass0] at = 0 & !busy -> 200 : (at' = 1);
  [pass1] at = 1 & !busy -> 200 : (at' = 2);
  [pass2] at = 2 & !busy -> 200 : (at' = 0);
  [take0] at = 0 & !busy -> 200 : (busy' = true);
  [take1] at = 1 & !busy -> 200 : (busy' = true);
  [take2] at = 2 & !busy -> 200 : (busy' = true);
  [done0] at = 0 & busy -> 1 : (at' = 1) & (busy' = false);
  [done1] at = 1 & busy -> 1 : (at' = 2) & (busy' = false);
  [done2] at = 2 & busy -> 1 : (at' = 0) & (busy' = false);
endmodule
module station0
  full0 : bool init false;
  [pass0] !full0 -> 1 : true;
  [] !full0 -> 1/3 : (full0' = true);
  [take0] full0 -> 1 : true;
  [done0] full0 -> 1 : (full0' = false);
endmodule
module station1 = station0 [full0 = full1, pass0 = pass1, take0 = take1, done0 = done1] endmodule
module station2 = station0 [full0 = full2, pass0 = pass2, take0 = take2, done0 = done2] endmodule
rewards "customers" full0 : 1; full1 : 1; full2 : 1; endrewards
rewards "throughput" busy : 1; endrewards
""",
    "kanban": """
module cell0
  p0 : [0..1]; r0 : [0..1]; f0 : [0..1];
  [] p0 + r0 + f0 < 1 -> 1 : (p0' = p0 + 1);
  [] p0 > 0 -> 0.36 : (p0' = p0 - 1) & (r0' = r0 + 1);
  [] p0 > 0 -> 0.84 : (p0' = p0 - 1) & (f0' = f0 + 1);
  [] r0 > 0 -> 0.3 : (r0' = r0 - 1) & (p0' = p0 + 1);
  [fork] f0 > 0 -> 0.4 : (f0' = f0 - 1);
endmodule
module cell1
  p1 : [0..1]; r1 : [0..1]; f1 : [0..1];
  [fork] p1 + r1 + f1 < 1 -> 1 : (p1' = p1 + 1);
  [] p1 > 0 -> 0.42 : (p1' = p1 - 1) & (r1' = r1 + 1);
  [] p1 > 0 -> 0.98 : (p1' = p1 - 1) & (f1' = f1 + 1);
  [] r1 > 0 -> 0.3 : (r1' = r1 - 1) & (p1' = p1 + 1);
  [join] f1 > 0 -> 0.5 : (f1' = f1 - 1);
endmodule
module cell2
  p2 : [0..1]; r2 : [0..1]; f2 : [0..1];
  [fork] p2 + r2 + f2 < 1 -> 1 : (p2' = p2 + 1);
  [] p2 > 0 -> 0.39 : (p2' = p2 - 1) & (r2' = r2 + 1);
  [] p2 > 0 -> 0.91 : (p2' = p2 - 1) & (f2' = f2 + 1);
  [] r2 > 0 -> 0.3 : (r2' = r2 - 1) & (p2' = p2 + 1);
  [join] f2 > 0 -> 1 : (f2' = f2 - 1);
endmodule
module cell3
  p3 : [0..1]; r3 : [0..1]; f3 : [0..1];
  [join] p3 + r3 + f3 < 1 -> 1 : (p3' = p3 + 1);
  [] p3 > 0 -> 0.33 : (p3' = p3 - 1) & (r3' = r3 + 1);
  [] p3 > 0 -> 0.77 : (p3' = p3 - 1) & (f3' = f3 + 1);
  [] r3 > 0 -> 0.3 : (r3' = r3 - 1) & (p3' = p3 + 1);
  [] f3 > 0 -> 0.9 : (f3' = f3 - 1);
endmodule
rewards "throughput" f3 > 0 : 0.9; endrewards
""",
    "workstation_cluster": """
module workstations0
  n0 : [0..1] init 1; fixed0 : bool init false;
  [begin0] !fixed0 & n0 < 1 -> 1 : (fixed0' = true);
  [end0] fixed0 & n0 < 1 -> 1 : (fixed0' = false) & (n0' = n0 + 1);
  [] n0 > 0 -> n0 / 500 : (n0' = n0 - 1);
endmodule
module workstations1 = workstations0 [n0 = n1, fixed0 = fixed1, begin0 = begin1, end0 = end1] endmodule
module unit
  busy : bool init false;
  [begin0] !busy -> 10 : (busy' = true);
  [begin1] !busy -> 10 : (busy' = true);
  [begin2] !busy -> 10 : (busy' = true);
  [begin3] !busy -> 10 : (busy' = true);
  [begin4] !busy -> 10 : (busy' = true);
  [end0] busy -> 2 : (busy' = false);
  [end1] busy -> 2 : (busy' = false);
  [end2] busy -> 0.25 : (busy' = false);
  [end3] busy -> 0.25 : (busy' = false);
  [end4] busy -> 0.125 : (busy' = false);
endmodule
const double fails2 = 1/4000;
const double fails3 = 1/4000;
const double fails4 = 1/5000;
module part2
  works2 : bool init true; fixed2 : bool init false;
  [begin2] !works2 & !fixed2 -> 1 : (fixed2' = true);
  [end2] !works2 & fixed2 -> 1 : (fixed2' = false) & (works2' = true);
  [] works2 -> fails2 : (works2' = false);
endmodule
module part3 = part2 [works2 = works3, fixed2 = fixed3, begin2 = begin3, end2 = end3, fails2 = fails3] endmodule
module part4 = part2 [works2 = works4, fixed2 = fixed4, begin2 = begin4, end2 = end4, fails2 = fails4] endmodule
formula premium = (n0 >= 1 & works2) | (n1 >= 1 & works3) | (n0 + n1 >= 1 & works2 & works3 & works4);
rewards "below_premium" !premium : 1; endrewards
rewards "operational_share" true : (n0 + n1) / 2; endrewards
""",
    "flexible_manufacturing": """
formula speed = min(1, 1 / max(1, a0 + b0 + c0 + d0));
module plant
  a0 : [0..1] init 1; a1 : [0..1]; a2 : [0..1]; a3 : [0..1];
  b0 : [0..1] init 1; b1 : [0..1]; b2 : [0..1]; b3 : [0..1];
  c0 : [0..1] init 1; c1 : [0..1]; c2 : [0..1];
  d0 : [0..1]; d1 : [0..1]; d2 : [0..1];
  [] a0 = 1 -> speed : (a0' = 0) & (a1' = 1);
  [] b0 = 1 -> speed : (b0' = 0) & (b1' = 1);
  [] c0 = 1 -> speed : (c0' = 0) & (c1' = 1);
  [] d0 = 1 -> speed : (d0' = 0) & (d1' = 1);
  [] a1 = 1 -> 0.2 : (a1' = 0) & (a2' = 1);
  [] a1 = 1 & b3 = 0 -> 0.05 : (a1' = 0) & (a3' = 1);
  [] a1 = 1 & b3 = 1 -> 0.05 : (a1' = 0) & (b3' = 0) & (d0' = 1);
  [] b1 = 1 -> 0.1 : (b1' = 0) & (b2' = 1);
  [] b1 = 1 & a3 = 0 -> 1/15 : (b1' = 0) & (b3' = 1);
  [] b1 = 1 & a3 = 1 -> 1/15 : (b1' = 0) & (a3' = 0) & (d0' = 1);
  [] c1 = 1 & b1 = 0 -> 0.5 : (c1' = 0) & (c2' = 1);
  [] d1 = 1 -> 1 : (d1' = 0) & (d2' = 1);
  [] a2 = 1 -> 1/60 : (a2' = 0) & (a0' = 1);
  [] b2 = 1 -> 1/60 : (b2' = 0) & (b0' = 1);
  [] c2 = 1 -> 1/60 : (c2' = 0) & (c0' = 1);
  [] d2 = 1 -> 1/60 : (d2' = 0) & (a0' = 1) & (b0' = 1);
endmodule
rewards "productivity"
  true : speed * (400 * a0 + 600 * b0 + 100 * c0 + 1100 * d0);
endrewards
""",
}
