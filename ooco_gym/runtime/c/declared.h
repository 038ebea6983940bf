/* @said@
   cluster: @NAME@_CLUSTER numbers; candidates: n rows of @NAME@_FEATURES numbers, as the manifest says.
   allowed: 1 for each candidate that may be taken; NULL allows all of them.
   @NAME@_OWN_RULE where the policy gives no answer, or leaves the decision to the rule that it was trained beside. */
@function@;

