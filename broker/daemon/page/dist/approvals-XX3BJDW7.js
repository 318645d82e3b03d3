import{a,b}from"./chunk-HB5IZRDR.js";import"./chunk-7WCWPSKF.js";import"./chunk-43NQ5MWF.js";export{b as Approvals,a as pending};
